"""Texts for users: plan, sizing, status, Events, key figures, and configuration differences."""
