"""The Kubernetes API as this project uses it: clients, cached objects, what a pod tells."""
