"""Rewards: built-in functions, Python functions and services.

Users add a reward without changing this package: `reward.functions[]` with `name: Python` (their
function), `Http` (a service) or `Judge` (a chat model). To add a built-in one:

1. Add its name to `RewardKind` in `raggrpo_api.spec.reward`.
2. Write a pure function of the answer (`text_match`) or of the whole `RewardSample` (`rewards`).
3. Add its case to `BuiltIn` and `Rewards._built_in` in `rewards`; mypy reports what is missing.
"""
