/* The login of the console, where security is on. */

import { logIn, logOut, sender } from "./api.js";
import { button } from "./dialogs.js";
import { element } from "./dom.js";

const [place, account] = ["login", "account"].map((id) => document.getElementById(id));

const told = () => document.dispatchEvent(new CustomEvent("brokerd-session"));

function form() {
  const name = element("input", { id: "login-name", autocomplete: "username", required: true });
  const password = element("input", { id: "login-password", type: "password", autocomplete: "current-password", required: true });
  const refusal = element("p", { className: "damage", hidden: true });
  refusal.setAttribute("role", "alert");
  const go = element("button", { className: "main" }, "Log in");
  const made = element("form", {}, element("label", { htmlFor: name.id }, "account "), name,
    element("label", { htmlFor: password.id }, "password "), password, go);
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    [go.disabled, refusal.hidden] = [true, true];
    try {
      await logIn(name.value, password.value);
      told();
    } catch (error) {
      [refusal.textContent, refusal.hidden, go.disabled, password.value] = [error.message, false, false, ""];
      password.focus();
    }
  });
  return [element("h2", {}, "Log in"), made, refusal];
}

/* Shows the form to a caller without a login, and the account to others. Returns whether the form shows. */
export async function showLogin() {
  let mine;
  try {
    mine = await sender();
  } catch (error) {
    place.replaceChildren(element("p", { className: "damage" }, error.message));
    place.hidden = false;
    return false;
  }
  const isAsked = mine.auth && mine.name === "";
  place.hidden = !isAsked;
  place.replaceChildren(...isAsked ? form() : []);
  account.replaceChildren(...mine.auth && mine.name ? [`${mine.name} `] : [],
    ...mine.hasSession ? [button("Log out", async () => {
      try {
        await logOut();
      } catch (error) {
        place.replaceChildren(element("p", { className: "damage" }, error.message));
        place.hidden = false;
        return;
      }
      told();
    })] : []);
  if (isAsked) { document.getElementById("login-name").focus(); }
  return isAsked;
}
