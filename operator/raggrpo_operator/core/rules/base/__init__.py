"""Building blocks of rules: input, `SpecRule`, CEL expressions, text sizes. Contains no rules."""
