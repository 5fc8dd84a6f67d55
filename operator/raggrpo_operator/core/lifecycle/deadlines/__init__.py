"""Deadlines of a job, of the stages of an attempt, and of service outages."""
