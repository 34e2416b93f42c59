startCurves();
startMap();
startCollapse();
document.body.dataset.ready = "yes";
