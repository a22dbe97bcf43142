"""A small hub to call: real gRPC servers on loopback whose answers a test decides."""

import contextlib
import shutil
import subprocess
from concurrent import futures

import grpc
import pytest

from hetero_rl.v1 import fleet_service_pb2, fleet_service_pb2_grpc
from hetero_rl.wire.channels import server_options
from hetero_rl.wire.health import ServingStatus, encode_status


class Fleet(fleet_service_pb2_grpc.FleetServiceServicer):
    def __init__(self, refusal):
        self.refusal = refusal

    def GetRunStatus(self, request, context):
        if self.refusal is not None:
            context.set_trailing_metadata(self.refusal.trailing_metadata)
            context.abort(self.refusal.status, self.refusal.text)
        return fleet_service_pb2.GetRunStatusResponse(step=3)


def health_handler(status):
    check = grpc.unary_unary_rpc_method_handler(lambda request, context: encode_status(status))
    return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check})


@pytest.fixture
def serve():
    """Starts servers; each call returns host:port."""
    with contextlib.ExitStack() as cleanup:

        def start(*add_services, status=ServingStatus.SERVING, fleet=True, refusal=None, credentials=None):
            server = grpc.server(futures.ThreadPoolExecutor(4), options=server_options())
            if status is not None:
                server.add_generic_rpc_handlers((health_handler(status),))
            if fleet:
                fleet_service_pb2_grpc.add_FleetServiceServicer_to_server(Fleet(refusal), server)
            for add in add_services:
                add(server)
            if credentials is None:
                port = server.add_insecure_port("127.0.0.1:0")
            else:
                port = server.add_secure_port("127.0.0.1:0", credentials)
            server.start()
            cleanup.callback(lambda: server.stop(None).wait())
            return f"127.0.0.1:{port}"

        yield start


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Directory with two authorities, "site" and "other", and a certificate for 127.0.0.1 of each."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl makes the certificates and is not installed")
    root = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments):
        subprocess.run([program, *arguments], cwd=root, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for name in ("site", "other"):
        authority = ("-keyout", f"{name}-ca.key", "-out", f"{name}-ca.pem", "-subj", f"/CN={name}")
        openssl("req", "-x509", *new_key, *authority, "-days", "2")
        issue = (
            "-CA",
            f"{name}-ca.pem",
            "-CAkey",
            f"{name}-ca.key",
            "-subj",
            f"/CN={name}-peer",
            "-days",
            "2",
        )
        openssl(
            "req", "-x509", *new_key, *issue, "-keyout", f"{name}.key", "-out", f"{name}.pem",
            "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
        )  # fmt: skip
    return root
