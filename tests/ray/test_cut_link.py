"""Two hosts, as two network namespaces: a node whose link is cut for too long is lost, and comes back by its supervisor."""

import contextlib
import shutil
import subprocess
import sys
import time

import pytest

pytest.importorskip(
    "ray", reason="Ray is not installed here; `make test-ray` has an environment of its own for it"
)
pytestmark = [pytest.mark.e2e, pytest.mark.slow]
PATIENCE = 900.0
HEAD, NODE, PORT = "10.77.0.1", "10.77.0.2", 6399
IMPATIENT = {
    # The head takes a node for dead after 3 s; Ray's own default is about half a minute.
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


def run(*command):
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def other_host():
    """A namespace linked with this one; returns how a command is run in it. Skipped where none can be made."""
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(
            subprocess.Popen(
                [
                    shutil.which("unshare") or "/usr/bin/unshare",
                    "-n",
                    "sh",
                    "-c",
                    "echo here; exec sleep 3600",
                ],
                stdout=subprocess.PIPE,
            )
        )
        stack.callback(holder.kill)
        inside = ("nsenter", "-t", str(holder.pid), "-n")
        try:
            if holder.stdout.readline() != b"here\n":
                pytest.skip("this machine makes no network namespaces")
            run("ip", "link", "add", "vhead", "type", "veth", "peer", "name", "vnode")
            stack.callback(subprocess.run, ["ip", "link", "del", "vhead"], check=False)
            run("ip", "link", "set", "vnode", "netns", str(holder.pid))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"this machine links no network namespaces: {error}")
        run("ip", "addr", "add", f"{HEAD}/24", "dev", "vhead")
        run("ip", "link", "set", "vhead", "up")
        run(*inside, "ip", "addr", "add", f"{NODE}/24", "dev", "vnode")
        for device in ("lo", "vnode"):
            run(*inside, "ip", "link", "set", device, "up")
        yield inside


def alive():
    import ray

    return {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def wait_until(happened, what):
    """Returns once something is so, for good."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > deadline:
            pytest.fail(f"never: {what}")
        time.sleep(0.2)


def test_a_node_that_was_cut_off_is_started_again_by_its_supervisor(other_host, environment, tmp_path):
    import ray

    output = tmp_path / "node.out"
    impatient = {**environment, **IMPATIENT}
    command = [sys.executable, "-m", "hetero_rl.cli.main", "ray", "node"]
    head = ["--head", "--port", str(PORT), "--backend", "cpu", "--cpus", "1", "--node-ip", HEAD]
    node = [
        "--address",
        f"{HEAD}:{PORT}",
        "--backend",
        "red",
        "--devices",
        "1",
        "--cpus",
        "1",
        "--node-ip",
        NODE,
    ]
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(output.open("wb"))
        for arguments in ([*command, *head], [*other_host, *command, *node]):
            process = stack.enter_context(
                subprocess.Popen(
                    arguments, env=impatient, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
                )
            )
            stack.callback(process.terminate)
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("RAY_AUTH_MODE", "disabled")
        wait_until(lambda: joined(ray), output)
        stack.callback(ray.shutdown)

        wait_until(lambda: alive() == {HEAD, NODE}, "both nodes are there")
        run("ip", "link", "set", "vhead", "down")
        wait_until(lambda: alive() == {HEAD}, "the node that was cut off is taken for dead")
        run("ip", "link", "set", "vhead", "up")
        wait_until(lambda: alive() == {HEAD, NODE}, "the node is there again")

        assert "ray-node ended with exit code" in output.read_text()
        (red,) = [found for found in ray.nodes() if found["Alive"] and found["NodeManagerAddress"] == NODE]
        assert (red["Resources"]["NPU"], red["Labels"]["vendor"]) == (1.0, "ascend")


def joined(ray):
    try:
        ray.init(
            address=f"{HEAD}:{PORT}",
            namespace="tests",
            log_to_driver=False,
            configure_logging=False,
            _node_ip_address=HEAD,
        )
    except ConnectionError:
        return False
    return True
