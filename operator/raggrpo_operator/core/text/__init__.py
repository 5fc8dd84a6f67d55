"""Text for people: plan, sizing, status, figures, differences. Decides nothing."""
