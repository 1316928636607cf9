/* Search on pages that were opened as files: there a browser starts no workers, so the worker's script runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const script = `var importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((done) => {
        document.head.append(Object.assign(document.createElement("script"), {src: url, onload: done}));
      })));
      window.postMessage = (data) => parent.postMessage(data, "*");`;
      this.frame = Object.assign(document.createElement("iframe"), {
        hidden: true,
        srcdoc: `<head></head><script>${script}</script><script src="${url}"></script>`,
      });
      this.loaded = new Promise((done) => { this.frame.onload = done; });
      window.addEventListener("message", (event) => {
        if (event.source === this.frame.contentWindow) this.dispatchEvent(new MessageEvent("message", {data: event.data}));
      });
      document.documentElement.append(this.frame);
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})));
    }
  };
}
