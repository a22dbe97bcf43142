"""`hetero-rl`: where every command is registered. Importing this loads no torch."""

import platform

import typer

import hetero_rl
from hetero_rl.cli import bench, calibrate, certs, cluster, config, estimators, journal, ray, weights, workers
from hetero_rl.cli.audit import audit
from hetero_rl.cli.backends import backends
from hetero_rl.cli.doctor import doctor
from hetero_rl.cli.eval import evaluate
from hetero_rl.cli.export import export
from hetero_rl.cli.health import health
from hetero_rl.cli.hub import hub
from hetero_rl.cli.relay import relay
from hetero_rl.cli.reporting import ReportingGroup
from hetero_rl.cli.samples import samples
from hetero_rl.cli.status import status
from hetero_rl.cli.top import top
from hetero_rl.cli.train import train
from hetero_rl.cli.trainer_rank import trainer_rank
from hetero_rl.cli.worker import worker

__all__ = ["app", "run"]

app = typer.Typer(
    cls=ReportingGroup,
    no_args_is_help=True,
    # typer's own tracebacks print local variables, and those may hold what nobody should see.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _main(
    debug: bool = typer.Option(
        False, "--debug", envvar="HETERO_RL_DEBUG", help="Show the traceback of an error."
    ),
) -> None:
    """RL post-training of language models with rollouts on one vendor's accelerators and training on another's."""


def version() -> None:
    """Print the versions of hetero-rl and Python."""
    typer.echo(f"hetero-rl {hetero_rl.__version__} (Python {platform.python_version()})")


app.command()(train)
app.command()(status)
app.command()(top)
app.command()(samples)
app.command()(audit)
app.command("eval")(evaluate)
app.command()(export)
app.command()(hub)
app.command()(health)
app.command()(worker)
app.command()(relay)
app.command()(backends)
app.command()(doctor)
app.add_typer(estimators.app, name="estimators")
app.add_typer(certs.app, name="certs")
app.add_typer(cluster.app, name="cluster")
app.add_typer(bench.app, name="bench")
app.add_typer(calibrate.app, name="calibrate")
app.add_typer(config.app, name="config")
app.add_typer(journal.app, name="journal")
app.add_typer(ray.app, name="ray")
app.add_typer(weights.app, name="weights")
app.add_typer(workers.app, name="workers")
app.command()(version)
app.command("trainer-rank", hidden=True)(trainer_rank)


def run() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    run()
