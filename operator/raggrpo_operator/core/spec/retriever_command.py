"""Command line of a managed retriever, in pods and in local runs."""

from raggrpo_api.spec.retrieval import ManagedRetriever


def retriever_arguments(managed: ManagedRetriever) -> list[str]:
    """Return the arguments of `python -m raggrpo_retriever` except host and port."""
    arguments = ["--corpus", managed.corpus, "--index", str(managed.index)]
    model = managed.embedding
    if not managed.embeds or model is None:
        return arguments
    arguments += ["--embedding", model.path, "--pooling", str(model.pooling)]
    # "=" joins an option with its value, because a prefix may start with a hyphen.
    arguments += [
        f"--query-prefix={model.query_prefix}",
        f"--passage-prefix={model.passage_prefix}",
    ]
    arguments += [] if model.normalize else ["--no-normalize"]
    arguments += ["--max-tokens", str(model.max_tokens), "--index-path", managed.index_path]
    arguments += ["--hnsw-above", str(managed.hnsw_above)]
    return [*arguments, "--vectors", managed.vectors] if managed.vectors else arguments
