"""The subcommands of `raggrpo`, one per module."""
