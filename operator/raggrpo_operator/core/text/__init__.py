"""Text for users: plan, sizing, status, figures, differences. Decides nothing."""
