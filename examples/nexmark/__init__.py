"""The queries of the Nexmark benchmark, by MillWheel's library."""
