"""Values that driver and ranks exchange. Must not import torch."""
