"""What the tool of the agents searches."""

ENTRIES = ["cab [sty]", "bead [tux]", "face [why]", "hedge [vex]", "fog [zest]"]


def find(query: str) -> str:
    return "\n".join([each for each in ENTRIES if query[:1] in each][:2])


def length(sample: dict) -> float:
    """Return the reward of an answer."""
    return len(sample["completion"]) / 100
