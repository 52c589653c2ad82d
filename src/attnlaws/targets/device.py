"""Whether the device that was asked for is there: told before anything is tried on it."""

from __future__ import annotations


class NoDevice(ValueError):
    """A framework doesn't have the device that was asked for; the message says which."""


def torch_device(device: str) -> None:
    """Raise NoDevice where torch can't put a tensor on a device such as "cuda" or "cuda:1"."""
    if device == "cpu":
        return
    import torch

    cuda = device.split(":")[0] == "cuda"
    if cuda and torch.version.cuda is None and torch.version.hip is None:
        raise NoDevice(f"--device {device}: this torch has no CUDA")
    if cuda and not torch.cuda.is_available():
        raise NoDevice(f"--device {device}: this torch sees no CUDA device")
    try:
        torch.zeros(1, device=device)
    except Exception as error:  # of many kinds, by device and version
        raise NoDevice(f"--device {device}: torch can't use it ({_first_line(error)})") from error


def jax_device(device: str) -> None:
    """Raise NoDevice where JAX has no such device; "cuda" is its "gpu"."""
    import jax

    try:
        jax.devices({"cuda": "gpu"}.get(device, device))
    except RuntimeError as error:
        raise NoDevice(f"--device {device}: this JAX has no such device ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]
