"""The evaluation through functions: what each value is, asked of rules, until nothing new is told."""
