"""The arguments of a managed retriever, the same in a pod and on one machine."""

from raggrpo_api.spec.retrieval import ManagedRetriever


def retriever_arguments(managed: ManagedRetriever) -> list[str]:
    """Return what follows `python -m raggrpo_retriever`, except where it listens."""
    words = ["--corpus", managed.corpus, "--index", str(managed.index)]
    model = managed.embedding
    if not managed.embeds or model is None:
        return words
    words += ["--embedding", model.path, "--pooling", str(model.pooling)]
    # Joined by =, because a prefix may begin with a dash.
    words += [f"--query-prefix={model.query_prefix}", f"--passage-prefix={model.passage_prefix}"]
    words += [] if model.normalize else ["--no-normalize"]
    words += ["--max-tokens", str(model.max_tokens), "--index-path", managed.index_path]
    words += ["--hnsw-above", str(managed.hnsw_above)]
    return [*words, "--vectors", managed.vectors] if managed.vectors else words
