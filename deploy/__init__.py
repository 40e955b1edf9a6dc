"""What a deployment needs beside the package itself."""
