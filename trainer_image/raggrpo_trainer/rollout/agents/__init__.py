"""Samples from an application that calls the policy through the gateway.

`agent_collector.AgentCollector` replaces the `Collector` of the retrieval modes: it runs the
application once per sample and turns the recorded trajectory into rows.
"""
