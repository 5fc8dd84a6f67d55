"""Deadlines of a job, an attempt's stages and service outages."""
