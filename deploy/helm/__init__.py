"""The Helm chart, and what is made from code in it."""
