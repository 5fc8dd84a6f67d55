"""Translation of other trainers' configurations into jobs. Pure: reads no files."""
