"""Turns other trainers' configurations into jobs; pure: reads no files, judges no job."""
