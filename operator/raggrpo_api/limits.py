"""Size limits of specs and of data passed between processes, in bytes of UTF-8."""

from typing import Final

MAX_SPEC_BYTES: Final = 64 * 1024
"""Total size of all strings in a spec."""
MAX_ENV_BYTES: Final = 32 * 1024
"""`spec.env`: names, values and references."""
MAX_CONFIG_BYTES: Final = 64 * 1024
"""`TrainerConfig` as JSON."""
MAX_PROGRESS_BYTES: Final = 64 * 1024
"""Response to GET /progress."""
MAX_PREFLIGHT_BYTES: Final = 4096
"""`PreflightResult` as JSON; equals the kubelet's limit for a termination message."""
