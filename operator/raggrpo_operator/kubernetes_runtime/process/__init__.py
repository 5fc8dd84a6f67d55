"""Components of the operator process: work queue, metrics, probes, settings, logs."""
