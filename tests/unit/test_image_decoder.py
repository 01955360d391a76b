"""The decoder that Inductor compiles decodes what the plain one does, for any number of images."""

from __future__ import annotations

import pytest
import torch
from diffusers import AutoencoderKL

from atelier.config.sections.policy_parts import VaeConfig
from atelier.policies.sd3.decoder import ImageDecoder


def decoder(compiled: bool) -> ImageDecoder:
    torch.manual_seed(0)
    vae = AutoencoderKL(
        up_block_types=("UpDecoderBlock2D",) * 2,
        down_block_types=("DownEncoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        norm_num_groups=2,
        shift_factor=0.1,
    )
    return ImageDecoder(vae, VaeConfig(), torch.device("cpu"), compiled)


def latents(count: int) -> torch.Tensor:
    return torch.randn(count, 4, 8, 8, generator=torch.Generator().manual_seed(count))


def graphs_of(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """What dynamo compiles from now on, by dynamo alone."""
    seen: list[torch.fx.GraphModule] = []

    def counting(graph, _):
        seen.append(graph)
        return graph.forward

    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda run, **told: plain(run, backend=counting, **told))
    torch._dynamo.reset()
    return seen


def test_it_is_compiled_once_for_any_number_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, plain, compiled = graphs_of(monkeypatch), decoder(False), decoder(True)
    for count in (4, 3, 6):
        found, expected = (one.decode(latents(count)).wait() for one in (compiled, plain))
        assert (found == expected).all()
    assert len(graphs) == 1


def test_compiling_it_warns_of_nothing(monkeypatch: pytest.MonkeyPatch, recwarn) -> None:
    """Of a model in bfloat16, for which diffusers asks more questions."""
    graphs, compiled = graphs_of(monkeypatch), decoder(True)
    compiled._vae.to(torch.bfloat16)
    compiled.decode(latents(2)).wait()
    assert graphs
    assert not [one for one in recwarn if "Dynamo" in str(one.message)]


def test_names_of_its_weights_are_the_same() -> None:
    plain, compiled = decoder(False), decoder(True)
    assert [*compiled._vae.state_dict()] == [*plain._vae.state_dict()]


@pytest.mark.slow
def test_compiled_by_inductor_it_makes_the_same_images() -> None:
    torch._dynamo.reset()
    plain, compiled = decoder(False), decoder(True)
    for count in (4, 3):
        found, expected = (one.decode(latents(count)).wait() for one in (compiled, plain))
        assert abs(found.astype(int) - expected).max() <= 1
