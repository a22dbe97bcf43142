"""What many judged runs of a campaign add up to. Pure functions of the lines of its summary."""

from collections import Counter

__all__ = ["describe", "totals"]


def totals(lines):
    """Sums over runs.

    Args:
        lines: One object for each run: seed, seconds, kills by place, submissions by what became of their call,
            acknowledged, downloads and what the proxy did (older lines have neither), problems.
    """
    kills, fates, downloads, proxy = Counter(), Counter(), Counter(), Counter()
    for line in lines:
        kills.update(line["kills"])
        fates.update(line["submissions"])
        downloads.update(line.get("downloads", {}))
        proxy.update(line.get("proxy", {}))
    return {
        "runs": len(lines),
        "proxied": sum(bool(line.get("proxy")) for line in lines),
        "seconds": sum(line["seconds"] for line in lines),
        "kills": kills.total(),
        "places": dict(sorted(kills_by_place(kills).items())),
        "submissions": fates.total(),
        "fates": dict(sorted(fates.items())),
        "acknowledged": sum(line["acknowledged"] for line in lines),
        "downloads": dict(downloads),
        "proxy": dict(sorted(proxy.items())),
        "problems": [f"seed {line['seed']}: {problem}" for line in lines for problem in line["problems"]],
    }


def kills_by_place(kills):
    """Without the count at which a failpoint was armed."""
    places = Counter()
    for how, number in kills.items():
        places[how.partition("@")[0]] += number
    return places


def describe(sums):
    """The totals as text."""
    lost = sums["fates"].get("reply lost", 0)
    delivered = sums["submissions"] - sums["fates"].get("request lost", 0)
    arrived = f"of {delivered} that arrived, the reply to {lost} ({lost / max(1, delivered):.1%}) was lost"
    lines = [
        f"{sums['kills']} kills in {sums['runs']} runs, {sums['seconds']:.0f} s; {sums['proxied']} of the runs through the proxy",
        f"{sums['submissions']} submissions sent, {sums['acknowledged']} acknowledged; {arrived}",
        f"{sums['downloads'].get('versions', 0)} weight versions downloaded and checked; proxy: {sums['proxy']}",
        *(f"  {number:5d}  {place}" for place, number in sums["places"].items()),
        f"problems: {len(sums['problems'])}",
        *sums["problems"],
    ]
    return "\n".join(lines)
