// The two views, and the start.

function showView() {
  const isStatus = location.hash === "#status";
  byId("chat-view").hidden = isStatus;
  byId("status-view").hidden = !isStatus;
  for (const link of document.querySelectorAll("nav a")) {
    if ((link.hash === "#status") === isStatus) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  lookWhileSeen();
}

byId("key-button").hidden = !sessionStorage.getItem(KEY);
byId("key-button").addEventListener("click", () => {
  askForKey("", null).then(loadModels, () => {});
});
addEventListener("hashchange", showView);
document.addEventListener("visibilitychange", lookWhileSeen);
startChat();
showView();
