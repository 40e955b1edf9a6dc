"""Who may call what: principals, the policy, and the interceptor that applies it to all services (docs/security.md)."""
