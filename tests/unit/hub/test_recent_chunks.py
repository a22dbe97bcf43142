"""Recent chunks are bounded, and the ones that nobody asked for longest go first."""

from hetero_rl.hub.recent_chunks import RecentChunks


def test_a_message_is_found_by_blob_and_position():
    recent = RecentChunks(100)
    recent.put("a", 0, b"first")
    recent.put("a", 5, b"second")
    assert (recent.get("a", 0), recent.get("a", 5), recent.get("b", 0)) == (b"first", b"second", None)


def test_the_least_recently_used_one_is_forgotten_first():
    recent = RecentChunks(10)
    recent.put("a", 0, b"12345")
    recent.put("b", 0, b"12345")
    recent.get("a", 0)
    recent.put("c", 0, b"1")
    assert (recent.get("a", 0), recent.get("b", 0), recent.get("c", 0)) == (b"12345", None, b"1")


def test_a_message_put_twice_counts_once():
    recent = RecentChunks(10)
    for _ in range(5):
        recent.put("a", 0, b"12345")
    recent.put("b", 0, b"12345")
    assert recent.get("a", 0) == b"12345"


def test_a_message_larger_than_the_bound_is_not_kept():
    recent = RecentChunks(3)
    recent.put("a", 0, b"12345")
    assert recent.get("a", 0) is None
