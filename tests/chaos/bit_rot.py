"""A journal whose bytes change on the disk: `python -m tests.chaos.bit_rot DIRECTORY [--seconds N] [--seed N]`.

    handlers ──► journals that a hub left behind: it ended, was killed, lost its power, lost it before the last commits were
                      │ synced, was killed after its log began again
                      │ one file of a copy is damaged: a bit, a byte, a page of zeros, pages exchanged, cut, gone, longer
                      ├──► started: opened and verified as a hub does ──► all that it says, every submission handed in again
                      ├──► running: opened, not verified, as if the damage came later ──► the same
                      └──► read: what tools read of it

Each case must come out as one of: identical (nothing that is read differs), refused (an error of ours that names the journal), told
(rows are missing and the hub says so), earlier (of a power cut's journal: commits that nobody was told of may be gone without a word, and so
may a log be that is emptied; what is read is an earlier state, as a whole).
"""

import argparse
import itertools
import json
import logging
import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

from hetero_rl.errors import HeteroRLError
from hetero_rl.hub.clock import SystemClock
from hetero_rl.hub.handlers.context import HubContext, HubSettings
from hetero_rl.hub.handlers.queue import read_finished_group
from hetero_rl.hub.handlers.results import submit_results
from hetero_rl.hub.journal_reader import JournalReader
from hetero_rl.hub.memory_blobs import MemoryBlobStore
from hetero_rl.hub.stores.base import ConflictError
from hetero_rl.hub.stores.records import GroupState
from hetero_rl.hub.stores.sqlite_store import SqliteStore
from tests.chaos.rot_images import JOURNAL, contents, make_images

__all__ = ["DAMAGES", "judge_case", "rot", "verdict"]

_PAGE = 4096
_ABSENT = (None, False, ((), ()))


def _flip(draw, data):
    position = draw.randrange(len(data))
    data[position] ^= 1 << draw.randrange(8)


def _byte(draw, data):
    position = draw.randrange(len(data))
    data[position] = (data[position] + draw.randrange(1, 256)) % 256


def _scatter(draw, data):
    for _ in range(draw.randrange(2, 40)):
        _flip(draw, data)


def _zeros(draw, data):
    start = draw.randrange(len(data))
    end = min(len(data), start + draw.choice((8, 100, _PAGE)))
    data[start:end] = bytes(end - start)


def _zero_page(draw, data):
    start = draw.randrange(len(data)) // _PAGE * _PAGE
    data[start : start + _PAGE] = bytes(len(data[start : start + _PAGE]))


def _exchange(draw, data):
    one, other = (draw.randrange(max(1, len(data) // _PAGE)) * _PAGE for _ in range(2))
    data[one : one + _PAGE], data[other : other + _PAGE] = (
        data[other : other + _PAGE],
        data[one : one + _PAGE],
    )


def _cut(draw, data):
    del data[draw.randrange(len(data)) :]


def _cut_at_page(draw, data):
    del data[draw.randrange(len(data)) // _PAGE * _PAGE :]


def _cut_at_frame(draw, data):
    del data[32 + draw.randrange(max(1, len(data) // (_PAGE + 24))) * (_PAGE + 24) :]


def _empty(_draw, data):
    data.clear()


def _extend(draw, data):
    data += draw.randbytes(draw.randrange(1, 2 * _PAGE))


DAMAGES = {
    "bit": _flip,
    "byte": _byte,
    "bits": _scatter,
    "zeros": _zeros,
    "zero page": _zero_page,
    "exchange": _exchange,
    "cut": _cut,
    "cut at a page": _cut_at_page,
    "cut at a frame": _cut_at_frame,
    "empty": _empty,
    "extend": _extend,
}
_WEIGHTS = (8, 3, 3, 2, 3, 2, 1, 1, 1, 0.2, 0.5)
_LOG_HEADER_BYTES = 32


def verdict(expected, found, told, *, verified=True):
    """What became of everything that a journal said.

    Args:
        expected: From `contents`, before.
        found: From `contents`, after; a key whose reading was refused is missing.
        told: Whether the hub said that something is damaged.
        verified: Whether the whole journal was read before. Where it was not, a damaged index may hide rows until the next
            start; nothing may read differently all the same.

    Returns:
        The outcome, and what is wrong with it if anything is.
    """
    problems, lacks = [], False
    for key, value in expected.items():
        if key not in found or found[key] == value:
            continue
        lacks = True
        if not _is_less(key[0], value, found[key]) and (verified or found[key] not in _ABSENT):
            problems.append(f"{key} reads differently: {found[key]!r:.300} for {value!r:.300}")
    if lacks and verified and not told:
        problems.append("something is missing, and nothing says so")
    outcome = "told" if lacks or told else "identical"
    return ("refused" if len(found) < len(expected) else outcome), problems


def _is_less(kind, value, found):
    """Whether what was read is what was stored, without parts of it."""
    if kind == "trajectories":
        return all(
            set(map(repr, part)) <= set(map(repr, whole)) for part, whole in zip(found, value, strict=True)
        )
    if kind == "commit" and found is not None:
        return found.outcomes in {value.outcomes, ()} and found.log_probs in {value.log_probs, None}
    return found in _ABSENT and kind in {"manifest", "score"}


def judge_case(image, path, suffix, emptied, *, verify):
    """Outcome and problems of a damaged copy of an image, opened by a hub; whoever restarts it must not mend it by that."""
    outcome, problems = _judge_opening(image, path, suffix, emptied, verify=verify)
    if (
        verify
        and outcome == "refused"
        and _judge_opening(image, path, suffix, emptied, verify=True)[0] != "refused"
    ):
        problems = [*problems, "it was refused, and the next start found nothing wrong"]
    return outcome, problems


def _judge_opening(image, path, suffix, emptied, *, verify):
    try:
        store = SqliteStore(path)
    except HeteroRLError as error:
        return "refused", _unnamed(error)
    try:
        return _judge_open(image, store, suffix, emptied, verify=verify)
    except HeteroRLError as error:
        return "refused", _unnamed(error)
    finally:
        _close(store)


def _judge_open(image, store, suffix, emptied, *, verify):
    if verify:
        store.verify(begun=True)
    expected = image.states[-1]
    found, problems = _read_all(store, expected)
    told = bool(store.take_damage())
    outcome, differences = verdict(expected, found, told, verified=verify)
    may_be_earlier = suffix == "-wal" and not image.index
    if differences and may_be_earlier and _is_earlier(image, found, emptied):
        return "earlier", problems
    return outcome, [*problems, *differences, *_accepted_again(image, store)]


def _close(store):
    try:
        store.rollback()
        store.close()
    except HeteroRLError:
        pass  # what a damaged journal says at its end matters to nobody


def _unnamed(error):
    return (
        []
        if JOURNAL in str(error) or isinstance(error, ConflictError)
        else [f"the error does not name the journal: {error!r}"]
    )


def _is_earlier(image, found, emptied):
    """Whether what is read is what the journal said at an earlier commit that it may have gone back to."""
    return any(
        all(found[key] == state[key] if key in state else found[key] in _ABSENT for key in found)
        for state in image.states[0 if emptied else image.acknowledged :]
    )


def _read_all(store, expected):
    """What the journal says of every key, without those whose reading is refused; and errors that say nothing."""
    found, problems = {}, []
    for key in expected:
        store.begin()
        try:
            found |= contents(store, [key])
        except HeteroRLError as error:
            problems += _unnamed(error)
        store.rollback()
    return found, problems


def _accepted_again(image, store):
    """Hands in every submission once more, and reads every group as a trainer does."""
    context = HubContext(store, SystemClock(), HubSettings(), MemoryBlobStore())
    problems = []
    for submission in image.submissions:
        store.begin()
        try:
            if not submit_results(context, submission).duplicate:
                problems.append(f"submission {submission.sequence} was accepted again")
        except HeteroRLError:
            pass
        store.rollback()
    for key, row in image.states[-1].items():
        if key[0] != "group" or row.state is not GroupState.FINISHED:
            continue
        batches, _ = image.states[-1]["trajectories", key[1]]
        store.begin()
        try:
            group = read_finished_group(context, key[1])
            if group is not None and group.batches != tuple(item.batch for item in batches):
                problems.append(f"a trainer is handed other completions of {key[1]}")
        except HeteroRLError:
            pass
        store.rollback()
    return problems


def read_by_tools(image, path):
    """What is wrong with the samples that a tool reads of a damaged journal."""
    try:
        with JournalReader(path) as reader:
            samples = list(reader.samples(limit=1000))
    except HeteroRLError as error:
        return _unnamed(error)
    return [
        f"a tool is shown another sample {sample.sample_index} of {sample.group_id}"
        for sample in samples
        if (sample.token_ids, sample.log_probs, sample.payload, sample.backend)
        != _sample_of(image, sample.group_id, sample.sample_index)
    ]


def _sample_of(image, group_id, sample_index):
    batches, _ = image.states[-1].get(("trajectories", group_id), ((), ()))
    prompt = image.states[-1].get(("prompt", group_id))
    for item in batches:
        ends = list(itertools.accumulate(item.batch.lengths))
        for index, length, end in zip(item.batch.sample_indices, item.batch.lengths, ends, strict=True):
            if index == sample_index:
                part = slice(4 * (end - length), 4 * end)
                return item.batch.token_ids[part], item.batch.log_probs[part], prompt.payload, item.backend
    return None


def rot(directory, seed, *, cases=None, seconds=None):
    """Damages copies of journals until there were enough; returns counts by outcome, and the problems."""
    draw = random.Random(seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage] repeatable on purpose
    images = make_images(directory / f"seed-{seed}", draw)
    until = None if seconds is None else time.monotonic() + seconds
    counts, problems = Counter(), []
    for number in itertools.count():
        if number == cases or (until is not None and time.monotonic() >= until):
            break
        image = draw.choice(images)
        file = draw.choice([item for item in sorted(image.directory.iterdir()) if item.stat().st_size])
        (kind,) = draw.choices(list(DAMAGES), _WEIGHTS)
        suffix = file.name.removeprefix(JOURNAL)
        data = bytearray(file.read_bytes())
        DAMAGES[kind](draw, data)
        emptied = len(data) <= _LOG_HEADER_BYTES
        for mode in ("started", "running", "read"):
            place = directory / "case"
            shutil.rmtree(place, ignore_errors=True)
            path = image.copy_to(place)
            (place / file.name).write_bytes(data)
            if mode == "read":
                outcome, found = "read", read_by_tools(image, path)
            else:
                outcome, found = judge_case(image, path, suffix, emptied, verify=mode == "started")
            counts[mode, suffix or "main file", kind, outcome] += 1
            problems += [
                {
                    "seed": seed,
                    "case": number,
                    "image": image.name,
                    "file": file.name,
                    "damage": kind,
                    "mode": mode,
                    "problem": text,
                }
                for text in found
            ]
    return counts, problems


def described(counts):
    """A line for each file and kind of damage."""
    lines = []
    for mode, suffix in sorted({key[:2] for key in counts}):
        outcomes = Counter()
        for key, number in counts.items():
            if key[:2] == (mode, suffix):
                outcomes[key[3]] += number
        lines.append(
            f"{mode:8} {suffix:10} "
            + ", ".join(f"{number} {name}" for name, number in outcomes.most_common())
        )
    return "\n".join(lines)


def main():
    """Damages journals of seed after seed and prints what became of them; ends with 1 when something was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=200, help="of each seed")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    options.directory.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + options.seconds
    counts, problems = Counter(), []
    for seed in itertools.count(options.seed):
        shutil.rmtree(options.directory / f"seed-{seed}", ignore_errors=True)
        left = until - time.monotonic()
        if left <= 0:
            break
        found, wrong = rot(options.directory, seed, cases=options.cases, seconds=left)
        counts += found
        problems += wrong
    for problem in problems:
        sys.stdout.write(json.dumps(problem) + "\n")
    damaged = sum(number for key, number in counts.items() if key[0] == "started")
    sys.stdout.write(f"{described(counts)}\n{damaged} damaged journals, {len(problems)} problems\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
