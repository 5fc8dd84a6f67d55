"""Check AgentReady: run the application of a job without a GPU, against a policy with a script.

`check.check_agent` returns the finding.
"""
