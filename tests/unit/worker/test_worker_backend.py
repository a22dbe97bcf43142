"""What a backend declares decides how its worker joins."""

import dataclasses
import os
from unittest import mock

import pytest

from hetero_rl.config.tree import Config
from hetero_rl.errors import ConfigError
from hetero_rl.worker.engines.scripted import ScriptedEngine
from hetero_rl.worker.main import run_worker

REASON = "Its sampler reports what it had before temperature."


class Boastful(ScriptedEngine):
    """Measures of itself that it reports processed log-probabilities."""

    def capabilities(self):
        return dataclasses.replace(super().capabilities(), processed_log_probs=True)


@pytest.mark.asyncio
async def test_a_vendor_that_samples_portably_only_refuses_a_run_that_does_not_with_its_reason(hub, fleet):
    fleet.declares = {"portable_sampling_only": REASON}
    hub.sampling = dataclasses.replace(hub.sampling, temperature=0.7)

    with pytest.raises(ConfigError, match=rf"temperature 0\.7.*'test'.*{REASON}"):
        await fleet.serve()

    assert hub.joins == []


@pytest.mark.asyncio
async def test_what_is_known_of_a_vendor_outweighs_what_its_engine_measured(hub, fleet):
    await hub.publish(1)
    hub.add_groups(1)
    fleet.engine_class = Boastful
    fleet.declares = {"portable_sampling_only": REASON}

    await fleet.serve()

    assert not hub.joins[0].capabilities.processed_log_probs


@pytest.mark.asyncio
async def test_an_engine_gets_device_and_options_of_its_backend(hub, fleet):
    await hub.publish(1)
    hub.add_groups(1)
    seen = []
    fleet.engine_class = lambda settings: seen.append(settings) or ScriptedEngine(settings)
    fleet.declares = {"torch_device": "npu"}

    await fleet.serve()

    assert (seen[0].device, dict(seen[0].options), seen[0].emulate) == ("npu", {}, "")


@pytest.mark.asyncio
async def test_only_the_transformers_engine_emulates(hub, fleet):
    with pytest.raises(ConfigError, match="'bf16': engine 'scripted' computes as its device does"):
        await fleet.serve(emulate="bf16")


@pytest.mark.asyncio
async def test_an_unknown_profile_is_refused_before_the_worker_joins(hub, fleet):
    with pytest.raises(ConfigError, match="'test' has no profile 'fast'"):
        await fleet.serve(profile="fast")

    assert hub.joins == []


def test_the_engine_of_the_settings_is_started_unless_another_is_named(monkeypatch):
    started = []
    monkeypatch.setattr("hetero_rl.worker.main._await_hub", lambda *_: None)
    monkeypatch.setattr("hetero_rl.worker.main._work", lambda options, _: started.append(options.engine_name))
    monkeypatch.setattr("asyncio.run", lambda _: None)
    config = Config.model_validate({"inference": {"worker": {"engine": "scripted"}}})

    with mock.patch.dict(os.environ):  # a worker sets up its own process
        run_worker("h:1", "cpu", config, "w")
        run_worker("h:1", "cpu", config, "w", engine_name="transformers")

    assert started == ["scripted", "transformers"]
