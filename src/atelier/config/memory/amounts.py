"""Bytes of memory for people."""


def memory_amount(size: float) -> str:
    """In powers of 1024, as GPUs are sold: MiB below one GiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
