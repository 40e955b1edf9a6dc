// Begins a session by a token. The token is not kept: the session is a cookie that no script can read.

const form = document.querySelector("form");
const token = document.querySelector("#token");
const failure = document.querySelector("#failure");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  failure.textContent = "";
  try {
    const response = await fetch("/login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token: token.value.trim() }),
    });
    if (response.ok) {
      token.value = "";
      location.replace("/");
      return;
    }
    const { error } = await response.json();
    failure.textContent = error.remedy ? `${error.message}: ${error.remedy}` : error.message;
  } catch {
    failure.textContent = "the server cannot be reached";
  }
});
