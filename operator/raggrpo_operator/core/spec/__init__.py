"""From what the user wrote to a complete specification: parse, presets, resolve."""
