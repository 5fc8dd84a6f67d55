"""OpenAI-compatible gateway: serves the policy to applications and records exact tokens.

`gateway.Gateway` serves one trajectory per key. `trajectory` turns its calls into rows, of which
each holds exactly the tokens that an engine processed. Knows nothing about rewards and ranks.
"""
