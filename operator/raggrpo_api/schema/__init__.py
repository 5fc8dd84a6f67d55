"""The CustomResourceDefinition, generated from the models, with its CEL rules."""
