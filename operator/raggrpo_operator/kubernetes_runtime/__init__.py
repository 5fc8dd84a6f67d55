"""The operator: watches the jobs of a cluster and reconciles each with `decide`."""
