"""A worker's part that gets weights, as a process: follows a hub to its latest version and prints what it holds.

Usage: python receiver.py ADDRESS DIRECTORY
"""

import asyncio
import json
import sys
import types
from pathlib import Path

from hetero_rl.weights.digests import digest_of_bytes
from hetero_rl.weights.tensors import raw_bytes
from hetero_rl.wire.clients import WeightClient
from hetero_rl.worker.blob_cache import BlobCache
from hetero_rl.worker.link import Link
from hetero_rl.worker.resend import Pacing
from hetero_rl.worker.weight_stage import WeightStage


async def follow(address, directory):
    async with WeightClient(address) as client:
        pacing = Pacing(patience=300.0)
        link = Link(None, pacing)
        session = types.SimpleNamespace(link=link, weights=client, pacing=pacing)
        cache = BlobCache(Path(directory), client, link)
        staged = await WeightStage(session, cache).advance(2**62)
    held = {name: digest_of_bytes(raw_bytes(tensor)) for name, tensor in staged.tensors()}
    return {"version": staged.manifest.version, "digests": held, "fetched": cache.fetched_bytes}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(follow(*sys.argv[1:]))))
