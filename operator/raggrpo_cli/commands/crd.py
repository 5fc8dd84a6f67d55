"""`raggrpo crd`: print the CustomResourceDefinition for `kubectl apply --server-side -f -`."""

import typer

from raggrpo_operator.crd import crd_yaml


def crd() -> None:
    """Print the CustomResourceDefinition of RagGrpoJob."""
    typer.echo(crd_yaml(), nl=False)
