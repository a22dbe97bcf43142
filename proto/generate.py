"""Generates the Python code of the protocol into a directory; run by `make proto` and by the drift test.

Usage: python proto/generate.py DIRECTORY

The generator is pinned in constraints-proto.txt to the newest grpcio-tools whose output checks no minimum protobuf
runtime at import, so that the same files load under protobuf 5.29 (older vendor images) and 7.
"""

import pathlib
import shutil
import sys
import tempfile

from grpc_tools import protoc

PROTO_ROOT = pathlib.Path(__file__).resolve().parent
PACKAGE = pathlib.Path("hetero_rl/v1")


def generate(target: pathlib.Path) -> None:
    """Writes *_pb2.py, *_pb2.pyi and *_pb2_grpc.py of every proto file into `target`."""
    sources = sorted(str(path.relative_to(PROTO_ROOT)) for path in PROTO_ROOT.glob(f"{PACKAGE}/*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        well_known = pathlib.Path(protoc.__file__).parent / "_proto"
        outputs = [f"--python_out={scratch}", f"--pyi_out={scratch}", f"--grpc_python_out={scratch}"]
        code = protoc.main(["protoc", f"-I{PROTO_ROOT}", f"-I{well_known}", *outputs, *sources])
        if code:
            raise SystemExit(code)
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(pathlib.Path(scratch, PACKAGE).iterdir()):
            if path.name.endswith("_pb2_grpc.py") and "_service_" not in path.name:
                continue
            shutil.copyfile(path, target / path.name)


if __name__ == "__main__":
    generate(pathlib.Path(sys.argv[1]))
