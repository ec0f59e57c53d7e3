"""What C0-C10 require, what passes them, roles, frozen-baseline rules, signatures."""
