"""Tensors reach the device and come back as they were, in the order of what a device is told."""

from __future__ import annotations

import pytest
import torch

from atelier.policies.flow.noise import Noise, Request
from atelier.policies.grey_levels import GreyLevels
from atelier.transfer import Arriving, to_device

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(name="device", params=DEVICES)
def _device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch.device(request.param)


def test_a_tensor_goes_and_comes_back(device: torch.device) -> None:
    for value in (torch.randn(3, 4), torch.arange(5), torch.tensor(True)):
        there = to_device(value, device)
        assert there.device.type == device.type
        assert to_device(there, device) is there
        assert torch.equal(Arriving(there).wait(), value)


def test_what_arrives_is_what_the_device_made_of_it_before(device: torch.device) -> None:
    value = to_device(torch.ones(512, 512), device)
    for _ in range(20):
        value = value @ value / 512
    arriving = Arriving(value.T)
    assert arriving.wait().device.type == "cpu"
    assert torch.equal(arriving.wait(), torch.ones(512, 512))


def test_noise_is_the_same_on_every_device(device: torch.device) -> None:
    noise = Noise((2, 3), device, threads=2, ahead=1)
    requests = [Request((seed, seed + 1), 2) for seed in range(4)]
    noise.expect(requests)
    for one in requests:
        rows = [torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(k)) for k in one.keys]
        found = noise(one)
        assert found.device.type == device.type
        assert torch.equal(found.cpu(), torch.stack(rows))


def test_grey_levels_are_the_same_on_every_device(device: torch.device) -> None:
    images = torch.linspace(-0.1, 1.1, 2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    found = GreyLevels(images.to(device).permute(0, 2, 3, 1), "").wait()
    expected = GreyLevels(images.permute(0, 2, 3, 1), "").wait()
    assert (found == expected).all()
