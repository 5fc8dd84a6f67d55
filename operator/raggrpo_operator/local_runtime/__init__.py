"""The same decisions driving Ray processes on this machine; state is kept as files."""
