"""Field types shared by the models: addresses, names, JSON values and bounded text."""
