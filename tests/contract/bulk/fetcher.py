"""A worker's download as a process: fetches one blob into a directory and prints by how many bytes its memory has grown at most.

Usage: python fetcher.py ADDRESS DIRECTORY DIGEST SIZE
"""

import asyncio
import json
import sys
from pathlib import Path

from hetero_rl.freed_memory import keep_freed_memory
from hetero_rl.weights.digests import digest_of_file
from hetero_rl.wire.clients import WeightClient
from hetero_rl.wire.messages import BlobReference
from hetero_rl.worker.blob_cache import BlobCache
from hetero_rl.worker.link import Link
from hetero_rl.worker.resend import Pacing


def peak():
    """Most resident bytes so far."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (found,) = [line for line in lines if line.startswith("VmHWM:")]
    return int(found.split()[1]) * 1024


async def fetch(address, directory, blob):
    async with WeightClient(address) as client:
        cache = BlobCache(Path(directory), client, Link(None, Pacing(patience=300.0)))
        before = peak()
        path = await cache.fetch(blob)
        grown = peak() - before
    return {"grown": grown, "digest": digest_of_file(path)}


if __name__ == "__main__":
    keep_freed_memory()
    address, directory, digest, size = sys.argv[1:]
    sys.stdout.write(json.dumps(asyncio.run(fetch(address, directory, BlobReference(digest, int(size))))))
