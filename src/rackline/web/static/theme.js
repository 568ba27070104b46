// The theme that was chosen, before anything is painted.
try {
  var chosen = localStorage.getItem("rackline-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch (error) {
  // a browser that keeps nothing follows the system
}
