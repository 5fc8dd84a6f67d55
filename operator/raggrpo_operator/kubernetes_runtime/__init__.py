"""The operator: watches jobs in a cluster and drives `decide` for each of them."""
