"""Examples: programs that use MillWheel as its users do, through the public interface alone."""
