"""Prepare the quickstart: corpus and questions from real records, and a tiny warmed-up model."""
